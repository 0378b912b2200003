"""The port on Redis Streams: names in `keys`, atomic acts in `functions.lua`, their typed twins in `functions`."""
