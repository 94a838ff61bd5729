module solehold.dev/solehold

go 1.25
