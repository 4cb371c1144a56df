"""Sample ids from content, record formats, audit and demo data."""
