"""The server under load: is every answer right, and what does serving cost?"""
