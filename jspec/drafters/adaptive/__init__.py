"""A drafter whose rounds are as wide as pays."""
