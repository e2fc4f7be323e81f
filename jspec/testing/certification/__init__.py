"""Certification that drafted decoding is lossless for one model, drafter and setting."""
