"""Telephone carriers that are not there: the other end of each telephony protocol, as its documentation has it."""
