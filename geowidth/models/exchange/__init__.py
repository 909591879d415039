"""Models in and out: Llama-family checkpoints of Hugging Face and GGUF, and exports of tapered models.

shape        what a Llama-family model is: sizes, conventions, and every tensor's name and shape
checkpoint   a folder of config.json and safetensors, read strictly: nothing is unpickled, nothing half-loaded
convert      our TaperedTransformer from a checkpoint, and back
gguf_read    GGUF files: dequantise, undo the permutation of queries and keys
gguf_write   GGUF files of architecture `deci`, which llama.cpp reads with one FFN width per layer
tokenizers   tokenizer.json from GGUF and back, and a byte-level one
formats      the formats of `geowidth export`
opening      what `geowidth measure MODEL` may name
"""
