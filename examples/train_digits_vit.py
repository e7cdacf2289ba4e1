"""Trains the Vision Transformer of examples/predict-vit.yaml on the digits that scikit-learn ships: two minutes.

Run `python -m examples.train_digits_vit`. The model is saved as transformers saves an image classifier: safetensors,
config.json with labels, and a preprocessor_config.json.
"""

import json
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from transformers import ViTConfig, ViTForImageClassification

from examples.train_digits import LABELS, PREPROCESSOR, SIDE

FOLDER = Path(__file__).parent / "models" / "digits-vit"
EPOCHS, BATCH, RATE = 60, 64, 2e-3


def main() -> None:
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    rows = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, SIDE, SIDE).expand(-1, 3, -1, -1)
    train, test, train_labels, test_labels = train_test_split(
        rows, torch.tensor(labels), test_size=0.25, random_state=0
    )
    config = ViTConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, image_size=SIDE, patch_size=2,
        hidden_dropout_prob=0.1, id2label=dict(enumerate(LABELS)),
    )  # fmt: skip
    model: Any = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    steps = EPOCHS * (len(train) // BATCH + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(EPOCHS):
        model.train()
        for chosen in torch.randperm(len(train)).split(BATCH):
            loss = model(pixel_values=train[chosen], labels=train_labels[chosen]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.inference_mode():
        right = (model(pixel_values=test).logits.argmax(dim=1) == test_labels).float().mean().item()
    model.save_pretrained(FOLDER)
    (FOLDER / "model.safetensors").chmod(0o644)  # safetensors writes for its owner alone, who is another one in a pod
    (FOLDER / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n")
    print(f"accuracy on {len(test)} digits that it was not trained on: {right:.3f}")


if __name__ == "__main__":
    main()
