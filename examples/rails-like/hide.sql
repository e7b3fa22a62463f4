UPDATE comments SET hidden = true WHERE id = :id;
