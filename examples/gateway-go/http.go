package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
)

// Longest text, message id and session id, and the body around them, in bytes.
const (
	textBytesMax = 16 * 1024
	idBytesMax   = 200
	bodyBytesMax = 128 * 1024
)

// router is the HTTP interface for clients and operators.
func router(g *gateway) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(response http.ResponseWriter, request *http.Request) {
		write(response, http.StatusOK, g.health(request.Context()))
	})
	mux.HandleFunc("GET /route/{session}", g.handle(g.route))
	mux.HandleFunc("GET /sessions/{session}/messages", g.handle(g.list))
	mux.HandleFunc("POST /sessions/{session}/messages", g.handle(g.send))
	return mux
}

// badRequest is an error that the client can mend, busy one that passes: sending the message again does no harm.
type badRequest struct{ error }
type busy struct{ error }

func (g *gateway) handle(serve func(*http.Request, string) (any, error)) http.HandlerFunc {
	return func(response http.ResponseWriter, request *http.Request) {
		session := request.PathValue("session")
		err := bounded("session", session, idBytesMax)
		var answer any
		if err == nil {
			answer, err = serve(request, session)
		}
		status, told := http.StatusServiceUnavailable, ""
		switch err := err.(type) {
		case nil:
			write(response, http.StatusOK, answer)
			return
		case badRequest:
			status, told = http.StatusBadRequest, err.Error()
		case busy:
			told = err.Error()
		default:
			slog.Error("cannot answer a request", "error", err)
			told = "the gateway failed; send the message again"
		}
		// A message that is sent again under its id is the same message.
		response.Header().Set("Retry-After", "1")
		write(response, status, map[string]string{"error": told})
	}
}

func write(response http.ResponseWriter, status int, value any) {
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(status)
	_ = json.NewEncoder(response).Encode(value)
}

func bounded(what, text string, most int) error {
	if len(text) >= 1 && len(text) <= most {
		return nil
	}
	return badRequest{fmt.Errorf("the %s has %d bytes; it must have 1 to %d", what, len(text), most)}
}

// send takes a message in and answers it, after all that came in before.
func (g *gateway) send(request *http.Request, session string) (any, error) {
	var sent struct {
		// ID is the client's own name for the message: sent again, it is the same message.
		ID   string `json:"id"`
		Text string `json:"text"`
	}
	decoder := json.NewDecoder(http.MaxBytesReader(nil, request.Body, bodyBytesMax))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&sent); err != nil {
		return nil, badRequest{fmt.Errorf("the body must be an object with id and text: %w", err)}
	}
	if err := bounded("id", sent.ID, idBytesMax); err != nil {
		return nil, err
	}
	if err := bounded("text", sent.Text, textBytesMax); err != nil {
		return nil, err
	}
	ctx := request.Context()
	if err := g.store.receive(ctx, session, sent.ID, sent.Text, g.cluster.NodeID()); err != nil {
		return nil, err
	}
	if answered, err := g.store.message(ctx, session, sent.ID); err != nil || answered != nil && answered.Reply != nil {
		return answered, err
	}
	if err := g.answer(ctx, session); err != nil {
		return nil, busy{err}
	}
	answered, err := g.store.message(ctx, session, sent.ID)
	if err == nil && (answered == nil || answered.Reply == nil) {
		err = busy{fmt.Errorf("the message is not answered yet")}
	}
	return answered, err
}

// list is the messages of a session, the last thousand.
func (g *gateway) list(request *http.Request, session string) (any, error) {
	messages, err := g.store.messages(request.Context(), session, nil)
	return map[string]any{"messages": messages}, err
}

// route is the live node that should serve a session.
func (g *gateway) route(request *http.Request, session string) (any, error) {
	nodeID, err := g.cluster.Route(request.Context(), session)
	if err != nil {
		return nil, busy{err}
	}
	route := map[string]any{"session": session, "node_id": nil}
	if nodeID != "" {
		route["node_id"] = nodeID
	}
	return route, nil
}
