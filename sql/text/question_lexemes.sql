CREATE OR REPLACE FUNCTION sag.question_lexemes(configuration regconfig, question text)
RETURNS text[]
LANGUAGE sql STABLE STRICT PARALLEL SAFE
RETURN tsvector_to_array(sag.text_vector(configuration, left(question, 10000)));
COMMENT ON FUNCTION sag.question_lexemes(regconfig, text) IS
'The lexemes of a question without stop words. They are ORed, for a question whose words are all '
'required finds nothing. Only the first 10 000 characters are read.';
