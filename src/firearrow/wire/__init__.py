"""RocketMQ's remoting protocol, sans-IO: bytes in, commands out.

Nothing in this package uses a socket, a clock or an event loop. The asyncio server, the asyncio client, a blocking
socket and a simulator therefore all run the same code.
"""
