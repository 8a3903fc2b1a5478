#include "native.h"

PyObject *native_scan(PyObject *self, PyObject *args)
{
	(void)self;
	(void)args;
	PyErr_SetString(PyExc_NotImplementedError, "scan");
	return NULL;
}
