"""The test kit that ships with pliant: run it on a policy of your own."""
