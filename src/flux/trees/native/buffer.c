/* Growing byte strings and lists of pairs for the scanner. */
#define _GNU_SOURCE
#include "scan.h"

#include <stdlib.h>
#include <string.h>

bool reserve(struct buffer *buffer, size_t more)
{
	if (buffer->failed)
		return false;
	if (more <= buffer->capacity - buffer->length)
		return true;
	size_t wanted = buffer->capacity ? buffer->capacity : 256;
	while (wanted - buffer->length < more && wanted < SIZE_MAX / 2)
		wanted *= 2;
	char *data = wanted - buffer->length < more ? NULL : realloc(buffer->data, wanted);
	if (data == NULL) {
		buffer->failed = true;
		return false;
	}
	buffer->data = data;
	buffer->capacity = wanted;
	return true;
}

void append(struct buffer *buffer, const void *data, size_t length)
{
	if (length == 0 || !reserve(buffer, length))
		return;
	memcpy(buffer->data + buffer->length, data, length);
	buffer->length += length;
}

void append_pair(struct buffer *buffer, const struct buffer *path, const char *second, size_t length)
{
	uint32_t lengths[2] = {(uint32_t)path->length, (uint32_t)length};
	if (path->failed || path->length > UINT32_MAX || length > UINT32_MAX) {
		buffer->failed = true;
		return;
	}
	if (!reserve(buffer, sizeof(lengths) + path->length + length))
		return;
	append(buffer, lengths, sizeof(lengths));
	append(buffer, path->data, path->length);
	append(buffer, second, length);
}

bool next_pair(const struct buffer *buffer, size_t *position, struct pair *pair)
{
	uint32_t lengths[2];
	if (*position >= buffer->length)
		return false;
	memcpy(lengths, buffer->data + *position, sizeof(lengths));
	pair->first = buffer->data + *position + sizeof(lengths);
	pair->first_length = lengths[0];
	pair->second = pair->first + lengths[0];
	pair->second_length = lengths[1];
	*position += sizeof(lengths) + lengths[0] + lengths[1];
	return true;
}

void release(struct buffer *buffer)
{
	free(buffer->data);
	memset(buffer, 0, sizeof(*buffer));
}

void release_findings(struct findings *findings)
{
	release(&findings->entries);
	release(&findings->nested);
	release(&findings->unreadable);
	release(&findings->racy);
	release(&findings->linked);
}

void release_attributes(struct attributes *attributes)
{
	release(&attributes->names);
	release(&attributes->value);
	release(&attributes->text);
	free(attributes->sorted);
	attributes->sorted = NULL;
	attributes->sorted_capacity = 0;
}
