package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/lib/pq"
)

// The gateway's own tables. What is written while answering is fenced in the same transaction (rule 21).
//
//go:embed schema.sql
var schema string

const (
	poolMax = 16
	// How long one use of the database may take, with the wait for a connection.
	databaseWithin = 10 * time.Second
	// A node that is paused in the middle of a transaction keeps its rows locked, and every node that waits for them
	// keeps a connection: without a limit one such node stalls all others.
	limits = "-c idle_in_transaction_session_timeout=1500ms -c lock_timeout=3s -c statement_timeout=5s"
	// Several nodes may start at once, and creating what is there already can collide.
	schemaTries = 10
)

// message is a message as it is shown.
type message struct {
	ID         string  `json:"id"`
	Position   int64   `json:"position"`
	Text       string  `json:"text"`
	ReceivedBy string  `json:"received_by"`
	Reply      *string `json:"reply"`
	RepliedBy  *string `json:"replied_by"`
}

// fence is who writes, and under which token.
type fence struct {
	session string
	token   uint64
	nodeID  string
}

type store struct{ db *sql.DB }

// openStore connects, and creates the tables that are missing.
func openStore(ctx context.Context, database string) (*store, error) {
	parsed, err := url.Parse(database)
	if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		return nil, errors.New("the database must be a URL, as in postgres://user@host/database")
	}
	query := parsed.Query()
	query.Set("options", limits+" "+query.Get("options"))
	query.Set("connect_timeout", "5")
	if !query.Has("sslmode") {
		query.Set("sslmode", "disable")
	}
	parsed.RawQuery = query.Encode()
	db, err := sql.Open("postgres", parsed.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(poolMax)
	db.SetMaxIdleConns(poolMax)
	s := &store{db}
	if err := s.createTables(ctx); err != nil {
		db.Close()
		return nil, fmt.Errorf("creating the tables: %w", err)
	}
	return s, nil
}

func (s *store) createTables(ctx context.Context) error {
	for tries := 1; ; tries++ {
		_, err := s.db.ExecContext(ctx, schema)
		var collided *pq.Error
		if err == nil || tries == schemaTries || !errors.As(err, &collided) {
			return err
		}
	}
}

func (s *store) close() { s.db.Close() }

// transact runs a transaction. It is rolled back if work fails or ctx ends.
func (s *store) transact(ctx context.Context, work func(context.Context, *sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, databaseWithin)
	defer cancel()
	transaction, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := work(ctx, transaction); err != nil {
		_ = transaction.Rollback()
		return err
	}
	return transaction.Commit()
}

var errSeen = errors.New("the message was here already")

// receive takes a message in, once: the same id again is the same message.
func (s *store) receive(ctx context.Context, session, id, text, nodeID string) error {
	err := s.transact(ctx, func(ctx context.Context, transaction *sql.Tx) error {
		var position int64
		err := transaction.QueryRowContext(ctx,
			`INSERT INTO gateway.sessions (id, received) VALUES ($1, 1)
			 ON CONFLICT (id) DO UPDATE SET received = sessions.received + 1 RETURNING received`,
			session).Scan(&position)
		if err != nil {
			return err
		}
		inserted, err := transaction.ExecContext(ctx,
			`INSERT INTO gateway.messages (session_id, position, id, text, received_by)
			 VALUES ($1, $2, $3, $4, $5) ON CONFLICT (session_id, id) DO NOTHING`, session, position, id, text, nodeID)
		if err != nil {
			return err
		}
		if count, err := inserted.RowsAffected(); err != nil || count == 0 {
			return errors.Join(err, errSeen)
		}
		return nil
	})
	if err == errSeen || errors.Is(err, errSeen) {
		return nil
	}
	return err
}

// fenceOf is the largest token that has written for a session; 0 if none has.
func (s *store) fenceOf(ctx context.Context, session string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseWithin)
	defer cancel()
	var token uint64
	err := s.db.QueryRowContext(ctx, "SELECT fence FROM gateway.sessions WHERE id = $1", session).Scan(&token)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return token, err
}

// nextUnanswered is the first message of a session that has no reply; false if there is none.
func (s *store) nextUnanswered(
	ctx context.Context, session string,
) (position int64, text string, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseWithin)
	defer cancel()
	err = s.db.QueryRowContext(ctx,
		`SELECT position, text FROM gateway.messages WHERE session_id = $1 AND reply IS NULL
		 ORDER BY position LIMIT 1`, session).Scan(&position, &text)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, "", false, nil
	}
	return position, text, err == nil, err
}

// visit notes that a node has come into a session by its lock, or gone. Not behind the fence.
func (s *store) visit(ctx context.Context, by fence, step string) error {
	ctx, cancel := context.WithTimeout(ctx, databaseWithin)
	defer cancel()
	_, err := s.db.ExecContext(ctx,
		"INSERT INTO gateway.visits (session_id, token, node_id, step) VALUES ($1, $2, $3, $4)",
		by.session, int64(by.token), by.nodeID, step)
	return err
}

// begin notes that a message is being answered.
func (s *store) begin(ctx context.Context, by fence, position int64) error {
	return s.transact(ctx, func(ctx context.Context, transaction *sql.Tx) error {
		if err := pass(ctx, transaction, by); err != nil {
			return err
		}
		return note(ctx, transaction, by, position, "begun")
	})
}

// answer writes the reply to a message.
func (s *store) answer(ctx context.Context, by fence, position int64, reply string) error {
	return s.transact(ctx, func(ctx context.Context, transaction *sql.Tx) error {
		if err := pass(ctx, transaction, by); err != nil {
			return err
		}
		answered, err := transaction.ExecContext(ctx,
			`UPDATE gateway.messages SET reply = $3, replied_by = $4
			 WHERE session_id = $1 AND position = $2 AND reply IS NULL`, by.session, position, reply, by.nodeID)
		if err != nil {
			return err
		}
		if count, err := answered.RowsAffected(); err != nil || count != 1 {
			return fmt.Errorf("message %d of session %s has a reply already", position, by.session)
		}
		return note(ctx, transaction, by, position, "answered")
	})
}

// pass lets a write pass if no larger token has written, and keeps out all smaller ones from then on.
func pass(ctx context.Context, transaction *sql.Tx, by fence) error {
	passed, err := transaction.ExecContext(ctx,
		"UPDATE gateway.sessions SET fence = $2 WHERE id = $1 AND fence <= $2", by.session, int64(by.token))
	if err != nil {
		return err
	}
	if count, err := passed.RowsAffected(); err != nil || count == 0 {
		return fmt.Errorf("token %d is fenced off: session %s has gone on elsewhere", by.token, by.session)
	}
	return nil
}

func note(ctx context.Context, transaction *sql.Tx, by fence, position int64, step string) error {
	_, err := transaction.ExecContext(ctx,
		"INSERT INTO gateway.log (session_id, position, token, node_id, step) VALUES ($1, $2, $3, $4, $5)",
		by.session, position, int64(by.token), by.nodeID, step)
	return err
}

// message is a message by its client's name; nil if there is none.
func (s *store) message(ctx context.Context, session, id string) (*message, error) {
	found, err := s.messages(ctx, session, &id)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// messages are the last messages of a session, in order, or the one with an id.
func (s *store) messages(ctx context.Context, session string, id *string) ([]message, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseWithin)
	defer cancel()
	rows, err := s.db.QueryContext(ctx,
		`SELECT id, position, text, received_by, reply, replied_by FROM (
		    SELECT * FROM gateway.messages WHERE session_id = $1 AND ($2::text IS NULL OR id = $2)
		    ORDER BY position DESC LIMIT 1000
		 ) last ORDER BY position`, session, id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	messages := []message{}
	for rows.Next() {
		var m message
		if err := rows.Scan(&m.ID, &m.Position, &m.Text, &m.ReceivedBy, &m.Reply, &m.RepliedBy); err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	return messages, rows.Err()
}

// leftBehind are sessions with messages that are unanswered for this long: their node has most likely died.
func (s *store) leftBehind(ctx context.Context, unanswered time.Duration, limit int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseWithin)
	defer cancel()
	rows, err := s.db.QueryContext(ctx,
		`SELECT session_id FROM gateway.messages
		 WHERE reply IS NULL AND received_at < statement_timestamp() - $1 * interval '1 millisecond'
		 GROUP BY session_id ORDER BY min(received_at) LIMIT $2`, float64(unanswered.Milliseconds()), limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var sessions []string
	for rows.Next() {
		var session string
		if err := rows.Scan(&session); err != nil {
			return nil, err
		}
		sessions = append(sessions, session)
	}
	return sessions, rows.Err()
}
