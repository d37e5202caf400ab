CREATE OR REPLACE FUNCTION sag.relevance(
    event_embedding halfvec, event_lexemes tsvector, event_lexeme_count integer,
    embedding halfvec, queries tsquery[], weights double precision[],
    average_length double precision
) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN embedding IS NOT NULL THEN 1 - (event_embedding <=> embedding) / 2
    ELSE sag.lexical_score(event_lexemes, event_lexeme_count, queries, weights, average_length)
END;
COMMENT ON FUNCTION sag.relevance(
    halfvec, tsvector, integer, halfvec, tsquery[], double precision[], double precision
) IS
'How near an event is to the question: similarity where the question has an embedding, else the '
'lexical score. Inlined by the planner; only the order within one question matters.';
