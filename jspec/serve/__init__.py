"""The server: requests in the words of the OpenAI API, and rows that come and go on one
device.

`scheduler` owns the device and knows nothing of HTTP; `service` knows HTTP and nothing of rows.
What lies between them is a `Job`.
"""
