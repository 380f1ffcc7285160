"""What scripts/network_client.py is made of."""
