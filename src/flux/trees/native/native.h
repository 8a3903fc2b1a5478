#ifndef FLUX_TREES_NATIVE_H
#define FLUX_TREES_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *native_scan(PyObject *self, PyObject *args);
PyObject *native_lookup(PyObject *self, PyObject *args);
PyObject *native_filesystem(PyObject *self, PyObject *args);
PyObject *native_set_mode(PyObject *self, PyObject *args);
PyObject *native_has_handles(PyObject *self, PyObject *args);
PyObject *native_next_tick(PyObject *self, PyObject *unused);

#endif
