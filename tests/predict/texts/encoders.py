"""Tiny classifiers of texts with random weights and a tokenizer, saved as transformers saves them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?"
WORDS = ("the", "ship", "port", "sails", "harbour", "what", "is", "a", "captain", "anchor", "of", "in")
TOKENS = tuple(dict.fromkeys([*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]))
LABELS = {0: "calm", 1: "storm", 2: "fog"}
LONGEST = 64


def bert(folder: Path, labels: dict[int, str] | None = None, **more: Any) -> Path:
    """A BERT, whose second text has another type of tokens; without labels a reranker."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=len(TOKENS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LONGEST, id2label=labels or {0: "LABEL_0"}, initializer_range=0.5, **more,
    )  # fmt: skip
    return _save(folder, BertForSequenceClassification, config, _tokenizer(types=True))


def xlm_roberta(folder: Path) -> Path:
    """A reranker as bge-reranker: one type of tokens, and positions that begin behind the padding token."""
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    config = XLMRobertaConfig(
        vocab_size=len(TOKENS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LONGEST + 1, pad_token_id=0, bos_token_id=2, eos_token_id=3, type_vocab_size=1,
        id2label={0: "LABEL_0"}, initializer_range=0.5,
    )  # fmt: skip
    return _save(folder, XLMRobertaForSequenceClassification, config, _tokenizer(types=False))


def modernbert(folder: Path, labels: dict[int, str] | None = None) -> Path:
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    config = ModernBertConfig(
        vocab_size=len(TOKENS), hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LONGEST, local_attention=8, pad_token_id=0, cls_token_id=2, sep_token_id=3,
        bos_token_id=2, eos_token_id=3, id2label=labels or {0: "LABEL_0"}, initializer_range=0.3,
    )  # fmt: skip
    return _save(folder, ModernBertForSequenceClassification, config, _tokenizer(types=False))


def convbert(folder: Path) -> Path:
    """Its convolutions see the padding behind a text."""
    from transformers import ConvBertConfig, ConvBertForSequenceClassification

    config = ConvBertConfig(
        vocab_size=len(TOKENS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        embedding_size=32, max_position_embeddings=LONGEST, id2label={0: "LABEL_0"}, initializer_range=0.5,
    )  # fmt: skip
    return _save(folder, ConvBertForSequenceClassification, config, _tokenizer(types=True))


def _tokenizer(*, types: bool) -> Tokenizer:
    made = Tokenizer(models.WordPiece({token: at for at, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(list(SPECIAL))
    second = 1 if types else 0
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS]:0 $A:0 [SEP]:0 $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def _save(folder: Path, kind: Any, config: Any, tokenizer: Tokenizer) -> Path:
    import torch

    torch.manual_seed(0)
    model = kind(config)
    last = getattr(model.classifier, "out_proj", model.classifier)
    torch.nn.init.normal_(last.weight, std=0.3)  # scores that differ
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if getattr(config, "type_vocab_size", 0) > 1 else [])
    written = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LONGEST, "model_input_names": names,
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    return folder
