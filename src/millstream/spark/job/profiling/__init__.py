"""The profile job: measures a topic and gives advice about it.

This package owns the measures, the advice and the HTML page. It changes nothing in a topic.
"""
