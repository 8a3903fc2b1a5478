/* From the scanner's findings to Python values, and back. Called with the GIL. */
#ifndef FLUX_TREES_COLLECT_H
#define FLUX_TREES_COLLECT_H

#include "native.h"
#include "scan.h"

/* Raise OSError (MemoryError for ENOMEM); returns NULL. */
PyObject *fail_with(int error);
/* Append the strings of a list as pairs. Returns false with an exception set if one is not a file name. */
bool strings_from_list(struct buffer *buffer, PyObject *list);
/* Return the tuple that `_native.scan` documents, of what WALKERS walkers found; `base` is a dict or None. */
PyObject *scan_result(const struct findings *findings, PyObject *prefix, const struct buffer *skip, PyObject *base);
/* Return the second strings of all pairs as a list. */
PyObject *tokens_list(const struct buffer *buffer);

#endif
