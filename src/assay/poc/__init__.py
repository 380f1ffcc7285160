"""Proof of compute v2: seeded embeddings through the real weights, twelve numbers a nonce.

The numpy reference and the verdict. Imports neither torch nor vllm; the batched device version is
``assay.poc.torch_batch`` and is imported by name.
"""

from assay.poc.artifacts import decode_vector, encode_vector, encoding
from assay.poc.embeddings import input_embeddings, pseudo_token_ids
from assay.poc.layers import layer_vector, reflect, vector_from_state
from assay.poc.murmur import murmur3_32
from assay.poc.nonces import partition
from assay.poc.normals import normals, uniforms
from assay.poc.pick import pick_indices
from assay.poc.rotation import haar_rotate
from assay.poc.seeds import seed, strong_seed_words

__all__ = [
    "decode_vector",
    "encode_vector",
    "encoding",
    "haar_rotate",
    "input_embeddings",
    "layer_vector",
    "murmur3_32",
    "normals",
    "partition",
    "pick_indices",
    "pseudo_token_ids",
    "reflect",
    "seed",
    "strong_seed_words",
    "uniforms",
    "vector_from_state",
]
