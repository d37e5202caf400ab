CREATE OR REPLACE FUNCTION sag.add_usage(
    collection text, job bigint, models text[], requests bigint[], prompt_tokens bigint[],
    completion_tokens bigint[], estimated_tokens bigint[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.share_collection(add_usage.collection);
BEGIN
    INSERT INTO sag.ingest_usage AS u (
        collection_id, job_id, model, requests, prompt_tokens, completion_tokens,
        estimated_tokens
    )
    SELECT
        target, add_usage.job, n.model, sum(n.requests), sum(n.prompt_tokens),
        sum(n.completion_tokens), sum(n.estimated_tokens)
    FROM unnest(
        add_usage.models, add_usage.requests, add_usage.prompt_tokens,
        add_usage.completion_tokens, add_usage.estimated_tokens
    ) AS n (model, requests, prompt_tokens, completion_tokens, estimated_tokens)
    GROUP BY n.model
    ORDER BY n.model
    ON CONFLICT (collection_id, job_id, model) DO UPDATE
    SET requests = u.requests + excluded.requests,
        prompt_tokens = u.prompt_tokens + excluded.prompt_tokens,
        completion_tokens = u.completion_tokens + excluded.completion_tokens,
        estimated_tokens = u.estimated_tokens + excluded.estimated_tokens;
END
$$;
COMMENT ON FUNCTION sag.add_usage(
    text, bigint, text[], bigint[], bigint[], bigint[], bigint[]
) IS
'Adds what a worker asked of models to the account of a job.';
