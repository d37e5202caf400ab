CREATE OR REPLACE FUNCTION sag.model_choose(
    target bigint,
    question text,
    candidate_event_ids bigint[],
    event_limit integer,
    is_strict boolean,
    timeout_ms integer
)
RETURNS TABLE (event_ids bigint[], failure text)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE ROWS 1
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    candidates jsonb;
    answer jsonb;
    state text;
    detail text;
    hint text;
BEGIN
    SELECT jsonb_agg(
        jsonb_build_object(
            'title', left(e.title, 200), 'text', left(coalesce(e.content, c.content), 500)
        ) ORDER BY u.no
    ) INTO candidates
    FROM unnest(model_choose.candidate_event_ids) WITH ORDINALITY AS u (event_id, no)
    INNER JOIN sag.event AS e
        ON e.collection_id = model_choose.target AND e.event_id = u.event_id
    INNER JOIN sag.chunk AS c
        ON c.collection_id = model_choose.target AND c.chunk_id = e.chunk_id;
    BEGIN
        answer := sag.call_gateway('choose', jsonb_build_object(
            'question', model_choose.question, 'candidates', candidates,
            'limit', model_choose.event_limit
        ), timeout_ms);
        IF jsonb_typeof(answer -> 'chosen') IS DISTINCT FROM 'array' THEN
            RAISE EXCEPTION 'the gateway gave no choice' USING ERRCODE = 'protocol_violation';
        END IF;
        -- Numbers that are none of the candidates', and those that came before, are dropped.
        SELECT array_agg(model_choose.candidate_event_ids[x.number] ORDER BY x.no)
        INTO event_ids
        FROM (
            SELECT n.number::integer AS number, min(n.no) AS no
            FROM (
                SELECT
                    CASE WHEN jsonb_typeof(a.item) = 'number' THEN (a.item #>> '{}')::numeric
                    END AS number,
                    a.no
                FROM jsonb_array_elements(answer -> 'chosen') WITH ORDINALITY AS a (item, no)
            ) AS n
            WHERE n.number BETWEEN 1 AND cardinality(model_choose.candidate_event_ids)
                AND n.number % 1 = 0
            GROUP BY n.number
            ORDER BY 2
            LIMIT model_choose.event_limit
        ) AS x;
        IF event_ids IS NULL THEN
            RAISE EXCEPTION 'the model chose none of the candidates'
            USING ERRCODE = 'protocol_violation';
        END IF;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, failure = MESSAGE_TEXT,
            detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
        event_ids := NULL;
    END;
    IF event_ids IS NULL THEN
        PERFORM sag.fall_back('the rank stands', is_strict, state, failure, detail, hint);
    END IF;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION sag.model_choose(bigint, text, bigint[], integer, boolean, integer) IS
'The gateway''s part of choose_events: the candidates that a language model finds to be evidence, '
'in its order. NULL with a warning where that fails; an error where the call is strict.';
