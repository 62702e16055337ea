"""The demo model as a GGUF file, for llama.cpp: run with the Python of llama.cpp's environment.

python to_gguf.py CHECKPOINT_FOLDER FILE
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main(folder: Path, file: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama")
    write_shape(writer, config)
    write_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()), config)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    for name, weight in load_file(folder / "model.safetensors").items():
        kind = name.removesuffix("_proj.weight")[-1]
        is_rotated = name.endswith(("q_proj.weight", "k_proj.weight"))
        writer.add_tensor(renamed(name), interleaved(weight, heads[kind]) if is_rotated else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_shape(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def write_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict, config: dict) -> None:
    """Byte-level BPE. GPT-2's way to split a text gives the same tokens: no merge has a digit in it."""
    special = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    types = (gguf.TokenType.CONTROL if id in special else gguf.TokenType.NORMAL for _, id in tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types(list(types))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)  # the chat template writes it


def renamed(name: str) -> str:
    """The tensor's name in GGUF. Raises KeyError for one that is not of the demo model."""
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[
            name
        ]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection in the order of llama.cpp's rotation, which turns neighbours, not halves."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
