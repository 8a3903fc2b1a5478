"""The operations over HTTP and WebSocket. Asynchronous here, synchronous below: engine calls run in threads."""
