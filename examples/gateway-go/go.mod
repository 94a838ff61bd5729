module solehold.dev/examples/gateway

go 1.25

require (
	github.com/lib/pq v1.10.7
	solehold.dev/solehold v0.0.0
)

replace solehold.dev/solehold => ../../clients/go
