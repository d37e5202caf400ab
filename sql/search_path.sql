-- Every function below carries the search_path that is in force when it is created.
SELECT set_config('search_path', sag.search_path(), TRUE);
