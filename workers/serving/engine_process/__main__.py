from workers.serving.engine_process.program import main

main()
