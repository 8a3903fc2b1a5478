/* Messages between the owner and the launcher or init: a fixed header, a text, descriptors. */
#include "launcher.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct header {
    uint32_t type;
    uint32_t id;
    int32_t value;
};

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * DESCRIPTORS_MAX)];
};

void message_send(uint32_t type, uint32_t id, int32_t value, const char *text, const int *descriptors, size_t count)
{
    struct header header = {type, id, value};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)text, text ? strlen(text) : 0}};
    union control control;
    struct msghdr packet = {.msg_iov = parts, .msg_iovlen = 2};
    if (count) {
        memset(&control, 0, sizeof control);
        packet.msg_control = control.bytes;
        packet.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&packet);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(rights), descriptors, sizeof(int) * count);
    }
    while (sendmsg(CONTROL, &packet, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

static void take_descriptors(struct message *message, struct msghdr *packet)
{
    message->count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(packet); part; part = CMSG_NXTHDR(packet, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        message->count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(message->descriptors, CMSG_DATA(part), message->count * sizeof(int));
    }
}

/* False when the owner is gone. */
bool message_receive(struct message *message)
{
    struct header header;
    struct iovec parts[2] = {{&header, sizeof header}, {message->text, sizeof message->text - 1}};
    union control control;
    struct msghdr packet = {
        .msg_iov = parts, .msg_iovlen = 2, .msg_control = control.bytes, .msg_controllen = sizeof control};
    ssize_t size;
    do
        size = recvmsg(CONTROL, &packet, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size < (ssize_t)sizeof header)
        return false;
    message->type = header.type;
    message->id = header.id;
    message->value = header.value;
    message->text[size - (ssize_t)sizeof header] = 0;
    take_descriptors(message, &packet);
    return true;
}

/* Report the step that failed with errno, and end. */
void fail(const char *format, ...)
{
    int reason = errno;
    char text[TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    message_send(MESSAGE_FAILED, 0, reason, text, NULL, 0);
    _exit(1);
}

/* The content of a file in memory, writable and private; NULL with errno. An empty file is an error. */
char *map_file(int descriptor, size_t *size)
{
    struct stat status;
    if (fstat(descriptor, &status) < 0)
        return NULL;
    *size = (size_t)status.st_size;
    char *text = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0);
    return text == MAP_FAILED ? NULL : text;
}
