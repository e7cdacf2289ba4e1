"""Small tokenizers of each kind, built with the library that published ones are built with."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from slipway_server.text.tokenizer import Tokenizer as Ours

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:!?'\"\n"
WORDS = ("▁ship", "▁and", "▁a", "ing", "Ü", "語", "\ufffd")
SPECIAL = ("<s>", "</s>", "<|user|>")


def byte_fallback(folder: Path, *, strips: bool = True) -> Ours:
    """As SentencePiece models are converted: Llama-2, Mistral, Phi-3; without `strips` as Gemma."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS, *WORDS]
    made = Tokenizer(
        models.BPE(vocab={piece: at for at, piece in enumerate(dict.fromkeys(pieces))}, merges=[], byte_fallback=True)
    )
    replace, fallback, fuse = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    if strips:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.Sequence([replace, fallback, fuse, decoders.Strip(" ", 1, 0)])
    else:
        made.normalizer = normalizers.Replace(" ", "▁")
        made.decoder = decoders.Sequence([replace, fallback, fuse])
    made.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return _read(made, folder)


def word_piece(folder: Path) -> Ours:
    """As BERT's: what a token adds depends on what stands before it."""
    words = ["[UNK]", "a", "ship", "##s", "and", "sail", "##ing", ".", ",", "don", "'", "t"]
    made = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return _read(made, folder)


def _read(made: Tokenizer, folder: Path) -> Ours:
    made.save(str(folder / "tokenizer.json"))
    return Ours(folder)
