// Writes the positions of a scene under the token of a lease: fenced DATABASE_URL SCENE TOKEN POSITIONS
package main

import (
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/lib/pq"
)

// Another holder has written under a newer token: stop, and do not retry.
const stale = "SH412"

func write(db *sql.DB, scene, token, positions string) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after a commit
	// SET takes no parameters; set_config does. True: only for this transaction.
	if _, err = tx.Exec("SELECT set_config('solehold.token', $1, true)", token); err != nil {
		return err
	}
	if _, err = tx.Exec("UPDATE app.tracks SET positions = $1 WHERE scene_id = $2", positions, scene); err != nil {
		return err
	}
	return tx.Commit()
}

func main() {
	db, err := sql.Open("postgres", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	err = write(db, os.Args[2], os.Args[3], os.Args[4])
	var refused *pq.Error
	switch {
	case errors.As(err, &refused) && refused.Code == stale:
		fmt.Println("stale:", refused.Message)
		os.Exit(3)
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println("written")
}
