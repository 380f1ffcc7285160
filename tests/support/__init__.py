"""What the tests share: models, servers, the CPU Triton backend."""
