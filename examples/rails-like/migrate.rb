# The tables as the application makes them; `windlass attach` adds what it needs beside them.
require "active_record"
ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))
ActiveRecord::Migration.verbose = false

class Tables < ActiveRecord::Migration[6.1]
  def change
    create_table :comments do |t|
      t.text    :text
      t.boolean :hidden, default: false, null: false
    end
    create_table :jobs do |t|
      t.string   :name,            null: false
      t.text     :data
      t.string   :status,          null: false
      t.datetime :created_at
      t.datetime :updated_at
      t.integer  :duration
      t.integer  :taskable_id
      t.string   :taskable_type
      t.text     :details
      t.string   :locked_queue_id, default: "", null: false
      t.integer  :attempts,        default: 0,  null: false
    end
    add_index :jobs, [:status, :locked_queue_id]
  end
end
Tables.migrate(:up)
