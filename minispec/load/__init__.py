"""Models on disk: where they come from, how they are read, and the handle that everything else takes.

load                     ms.load: a model by its name, ready to run where it lives
model                    a model with its tokenizer: prompts and chat messages in, token ids out
registry fetch           names of models, and how their files come into the cache folder
folder hf_config gguf    formats: Hugging Face's layout and live models, its config.json, llama.cpp's file
quantize head_files      weights in 8 bits and fewer; trained heads as we store them, and what published ones share
heads_eagle _dflash _medusa    the published layouts of each
write                    a file is written whole or not at all
"""
