"""Models in and out: Llama-family checkpoints of Hugging Face and GGUF, and exports of tapered models.

fields       what a config.json states: each field absent, null or a value
rope         its rotary positions, in the older and the newer form
shape        what a Llama-family model is: sizes, conventions, and every tensor's name and shape
checkpoint   a folder of config.json and safetensors, read strictly: nothing is unpickled, nothing half-loaded
carried      the source's config.json and files in an export
convert      our TaperedTransformer from a checkpoint, and back
gguf_file    GGUF files, walked with every count held against the file
gguf_read    their Llama models: dequantised, the permutation of queries and keys undone
gguf_write   GGUF files of architecture `deci`, which llama.cpp reads with one FFN width per layer
gguf_vocabulary   byte-level BPE between GGUF's fields and tokenizer.json
megatron     Megatron-LM's JSON of layers
folders      folders written whole or not at all
formats      the formats of `geowidth export`
sizes        what a config.json states, checked against the weight files and the machine
library      models of transformers from a folder, our exports of families our own model cannot hold included
"""
