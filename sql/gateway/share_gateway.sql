CREATE OR REPLACE FUNCTION sag.share_gateway() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    grantee text;
    needed text;
BEGIN
    FOR grantee, needed IN SELECT u.grantee, u.needed FROM sag.unshared_gateway() AS u LOOP
        BEGIN
            EXECUTE format('GRANT %s TO %I', needed, grantee);
        EXCEPTION WHEN insufficient_privilege THEN
            NULL;
        END;
    END LOOP;
    -- Who may use it but not grant it gets no error above, a warning at most.
    FOR grantee, needed IN SELECT u.grantee, u.needed FROM sag.unshared_gateway() AS u LOOP
        RAISE NOTICE 'role % cannot use the gateway', grantee
        USING HINT = format('Ask the owner for: GRANT %s TO %I;', needed, grantee);
    END LOOP;
END
$$;
COMMENT ON FUNCTION sag.share_gateway() IS
'Lets sag_reader and sag_writer use the foreign server of the gateway and dblink, where they are.';
