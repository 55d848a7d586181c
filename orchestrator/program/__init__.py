"""The user's command: what it is made of, what it needs, and the mistakes for which it is refused.

What is only likely to go wrong with it is a finding: see `findings`.
"""
