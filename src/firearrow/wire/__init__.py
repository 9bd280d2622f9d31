"""RocketMQ's remoting protocol, sans-IO: bytes in, commands out.

Nothing in this package knows a socket, a clock or an event loop, so the asyncio server, the
asyncio client, a blocking socket and a simulator all run the same code.
"""
