"""The server: the OpenAI API over continuous batching on one device.

`scheduler` owns the device and knows nothing of HTTP; `service` knows HTTP and nothing of rows.
What lies between them is a `Job`.
"""
