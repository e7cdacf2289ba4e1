// Reads a stream whose first token comes after a long silence. Arguments: the name of a client, and a URL.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";
import OpenAI from "openai";

const [client, url] = process.argv.slice(2);
const messages = [{ role: "user", content: "And God made" }];

const clients = {
  async openai_node() {
    const made = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
    const stream = await made.chat.completions.create({
      model: "chat", messages, temperature: 0, max_tokens: 12, stream: true,
    });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    return text;
  },
  async ai_sdk() {
    const provider = createOpenAICompatible({ name: "slipway", baseURL: url, apiKey: "none" });
    const failures = [];
    const stream = streamText({
      model: provider("chat"), messages, temperature: 0, maxOutputTokens: 12, maxRetries: 0,
      onError: ({ error }) => failures.push(String(error)),
    });
    let text = "";
    for await (const part of stream.textStream) text += part;
    if (failures.length) throw new Error(failures.join("; "));
    return text;
  },
};

console.log(JSON.stringify(await clients[client]()));
