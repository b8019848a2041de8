"""The policies on the home grounds of others: their traces, speeds and clusters."""
