"""The server: the OpenAI API over continuous batching on one device.

`scheduler` owns the device and knows no HTTP, `service` no rows; a `Job` is between them.
"""
