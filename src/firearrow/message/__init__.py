"""The message format: names, properties, identifiers and stored bytes.

Everything here is a pure function of bytes and values. Nothing opens a file or a socket, reads a clock or draws a
random number. The broker, the clients, the Spark source and the simulator therefore share one implementation. Import
the submodules by name.
"""
