"""Models on disk: where they come from, how they are read, and the handle that everything else takes.

handle                   a model with its tokenizer: prompts and chat messages in, token ids out
registry fetch           names of models, and how their files come into the cache folder
folder hf_config gguf    formats: Hugging Face's layout and live models, its config.json, llama.cpp's file
quantize heads           weights in 8 bits and fewer; trained heads, stored our way and as others publish them
heads_eagle _dflash _medusa    the published layouts of each, read and written
write                    a file is written whole or not at all
"""
