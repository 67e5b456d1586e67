"""Small streams in the format of the recordings of real engines (vLLM 0.32, transformers serve 5.19, llama-server)."""

VLLM_CHAT = (
    b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2]}\n\n'
    b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":"Gr\xc3\xbc\xc3\x9f"},"logprobs":null,"finish_reason":null,"token_ids":[11,12]}]}\n\n'
    b": keep-alive\n\n"
    b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":"e \xf0\x9f\x8c\x8d"},"finish_reason":"length","stop_reason":null,"token_ids":[13]}]}\n\n'
    b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":29,"total_tokens":32,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":16}}}\n\n'
    b"data: [DONE]\n\n"
)
TRANSFORMERS_CHAT = (
    b'data: {"id":"r2","choices":[{"delta":{"role":"assistant"},"index":0}],"created":1,"model":"/m@main",'
    b'"object":"chat.completion.chunk","system_fingerprint":""}\n\n'
    b'data: {"id":"r2","choices":[{"delta":{"content":"Hel"},"index":0}],"created":1,"model":"/m@main",'
    b'"object":"chat.completion.chunk","system_fingerprint":""}\n\n'
    b'data: {"id":"r2","choices":[{"delta":{},"index":0,"finish_reason":"length"}],"created":1,"model":"/m@main",'
    b'"object":"chat.completion.chunk","usage":{"completion_tokens":1,"prompt_tokens":31,"total_tokens":32}}\n\n'
)
TRANSFORMERS_COMPLETION = (
    b'data: {"id":"r1","choices":[{"index":0,"text":" Par"}],"created":1,"model":"m@main",'
    b'"object":"text_completion"}\n\n'
    b'data: {"id":"r1","choices":[{"finish_reason":"length","index":0,"text":""}],"created":1,"model":"m@main",'
    b'"object":"text_completion","usage":{"completion_tokens":1,"prompt_tokens":5,"total_tokens":6}}\n\n'
)
LLAMA_SERVER_CHAT = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1,'
    b'"id":"c","model":"m","system_fingerprint":"b1","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hi"}}],"created":1,"id":"c",'
    b'"object":"chat.completion.chunk"}\n\n'
    b'data: {"error":{"code":500,"message":"context is full","type":"server_error"}}\n\n'
)
