"""A step's result for one sequence: what it adds to the sequence, and what its client gets."""

from ..request import FinishReason, RequestOutput, Sampled, ScheduledSequence

NOT_FINITE = "The model computed numbers that are not finite."
NO_TOKEN = (
    "The request leaves no token to choose: allowed_token_ids, bad_words and min_tokens with stop_token_ids "
    "forbid all of them, or all that its grammar allows. Allow one more."
)


def advance(scheduled: ScheduledSequence, result: Sampled) -> RequestOutput:
    """Adds the result to the sequence and returns the client's output.

    If the output has a `finish`, the caller ends the sequence and frees its blocks.
    """
    request, sampling = scheduled.sequence.request, scheduled.sequence.request.sampling
    scheduled.sequence.num_prompt_logprobs += len(result.prompt_logprobs)
    if sampling is None:
        if result.embedding is None:
            return RequestOutput(request.id, finish=FinishReason.NON_FINITE, error=NOT_FINITE)
        return RequestOutput(request.id, embedding=result.embedding, finish=FinishReason.STOP)
    if not scheduled.samples or result.late:
        return RequestOutput(request.id, prompt_logprobs=result.prompt_logprobs)
    if result.refusal:
        return RequestOutput(request.id, finish=FinishReason.GRAMMAR, error=result.refusal)
    if result.token is None:
        if result.no_token_allowed:
            return RequestOutput(request.id, finish=FinishReason.INVALID, error=NO_TOKEN)
        return RequestOutput(request.id, finish=FinishReason.NON_FINITE, error=NOT_FINITE)
    scheduled.sequence.output.append(result.token)
    return RequestOutput(
        request.id,
        token=result.token,
        finish=sampling.finish_after(result.token, len(scheduled.sequence.output)),
        logprobs=result.logprobs,
        prompt_logprobs=result.prompt_logprobs,
    )
