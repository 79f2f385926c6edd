"""Models on disk: where they come from, how they are read, and the handle that everything else takes.

handle                      a model with its tokenizer: prompts in, token ids out
registry fetch              names of models, and how their files come into the cache folder
folder hf_config gguf       formats: Hugging Face's layout, its config.json, llama.cpp's file
quantize heads              weights in 8 bits and fewer; the trained heads of Medusa, EAGLE, DFlash and MTP
write                       a file is written whole or not at all
options failure interrupt   what every command line shares: its options, its errors, Ctrl-C
"""
