-- In PL/pgSQL and not SQL, whose functions start an executor at each call where an aggregate calls
-- them: a hundred times slower.
CREATE OR REPLACE FUNCTION sag.take_within_step(state bigint[], amount bigint, budget bigint)
RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN CASE
        WHEN state[1] + amount <= budget THEN ARRAY[state[1] + amount, 1]
        ELSE ARRAY[state[1], 0]
    END;
END
$$;
COMMENT ON FUNCTION sag.take_within_step(bigint[], bigint, bigint) IS
'Transition of sag.take_within(): the sum so far, and whether the last amount was taken.';
CREATE OR REPLACE FUNCTION sag.take_within_taken(state bigint[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN state[2] = 1;
END
$$;
COMMENT ON FUNCTION sag.take_within_taken(bigint[]) IS
'Result of sag.take_within(): whether the last amount was taken.';
-- The grammar of sqlfluff has no CREATE OR REPLACE AGGREGATE.
CREATE OR REPLACE AGGREGATE sag.take_within(amount bigint, budget bigint) ( -- noqa: PRS
    SFUNC = sag.take_within_step,
    STYPE = bigint[],
    INITCOND = '{0,0}',
    FINALFUNC = sag.take_within_taken
);
COMMENT ON AGGREGATE sag.take_within(bigint, bigint) IS
'As a window function: whether this row''s amount still fits the budget beside those taken before. '
'An amount that does not fit is skipped, and smaller ones behind it may be taken.';
