"""Makes a reranker for examples/rerank.yaml: a BERT of two layers with random weights, and a tokenizer of letters.

Run `python -m examples.make_reranker`. The folder is as transformers saves a cross-encoder: safetensors, config.json
and tokenizer.json. Its scores mean nothing.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification

FOLDER = Path(__file__).parent / "models" / "tiny-reranker"
LONGEST = 256
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:;!?'-"
TOKENS = (*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS))


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(TOKENS), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=LONGEST, id2label={0: "LABEL_0"}, initializer_range=0.3,
    )  # fmt: skip
    model: Any = BertForSequenceClassification(config)
    model.save_pretrained(FOLDER)
    (FOLDER / "model.safetensors").chmod(0o644)  # safetensors writes for its owner alone, who is another one in a pod
    tokenizer().save(str(FOLDER / "tokenizer.json"))
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LONGEST, "pad_token": "[PAD]",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }  # fmt: skip
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(options, indent=2) + "\n")


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordPiece({token: at for at, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(list(SPECIAL))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    return made


if __name__ == "__main__":
    main()
